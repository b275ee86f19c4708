"""The agents that stories, swarm, bench and demo play with, and what lies outside of them."""
