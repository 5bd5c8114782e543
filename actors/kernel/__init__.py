"""pykka's programming model on an event loop: mailboxes, one dispatcher, supervision."""
