"""The student's take-home page: `lab report`."""
