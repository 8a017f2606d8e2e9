"""The command line. A command's module is imported when the command runs, so that the rest starts fast."""
