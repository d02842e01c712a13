"""Bad input: one message that helps, exit code 2, nothing left behind."""
