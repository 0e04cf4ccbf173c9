"""The board: what students who joined send, and the pages that show it to the room and to the instructor."""
