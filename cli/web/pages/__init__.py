"""The pages themselves, from requests to templates."""
