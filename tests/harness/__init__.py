"""The base of the black-box tests: a broker process, a raw MQTT client, an account of messages.

Nothing here imports foldmq: it judges the broker by the standard only.
"""
