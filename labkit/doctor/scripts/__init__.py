"""Small probe scripts that the doctor runs. The first line of each is the command to run it by hand."""
