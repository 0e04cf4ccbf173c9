"""The board: collects progress from students who joined, and shows it to the room and to the instructor."""
