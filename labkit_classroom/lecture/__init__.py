"""What an instructor needs before the day: routes, timetable, rehearsal, guide, slides, catch-up."""
