"""Agents as tools of a server of the Model Context Protocol."""
