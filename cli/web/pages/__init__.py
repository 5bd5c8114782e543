"""The pages of the web page: requests, middleware and templates."""
