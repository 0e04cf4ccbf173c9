"""The page that a student takes home: `lab report`."""
