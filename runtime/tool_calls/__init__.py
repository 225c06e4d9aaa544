"""What a model writes -> content, reasoning and tool calls: one incremental parser per format."""
