"""The shell's door: command, flags, help; one module per command in commands/."""
