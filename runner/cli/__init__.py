"""The command line: commands, flags, help; one module per command in commands/."""
