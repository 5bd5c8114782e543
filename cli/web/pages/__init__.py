"""The pages, and the server that answers with them."""
