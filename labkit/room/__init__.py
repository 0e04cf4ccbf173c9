"""The room: what an instructor needs before the day, and what joins students and instructor on it."""
