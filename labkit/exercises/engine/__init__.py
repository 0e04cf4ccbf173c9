"""The engine of the exercises: run answers, compare their results, and report verdicts."""
