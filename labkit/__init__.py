"""What is not the lesson: measuring, launching, checking and drawing for the labs."""
