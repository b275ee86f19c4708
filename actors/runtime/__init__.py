"""What a client has: the runtime, its conversation with the supervisor, and the packages of code that it sends."""
