"""The HTTP API: one table of operations gives its routes, its OpenAPI document and MCP tools."""
