"""The instructor's tools: routes, timetable, rehearsal, guide, slides, catch-up."""
