"""The commands about users and permissions: ``foldmq passwd`` and ``foldmq acl``."""
