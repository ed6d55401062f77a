"""A command that trains, held to a budget by the log that its trainer writes."""
