"""What a run leaves behind: a table, a JSON file, a page."""
