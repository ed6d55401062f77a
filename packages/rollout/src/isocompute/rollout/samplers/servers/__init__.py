"""OpenAI-compatible servers: connections, several servers at a time, the two protocols, capabilities of a server."""
