"""The commands of `perdure`, each in a module that is imported when the command is taken."""
