"""Compares foldmq with other brokers, and attacks it: ``make bench`` and ``make abuse``.

The programs are ``run.py`` (``make bench``), ``abuse.py`` (``make abuse``), ``transports.py``, and
``logs/log_generator.py``; ``mqttload.c`` is the load generator. Each package imports only those
before it in this list:

brokers      brokers to be compared, and a small client of them
measuring    metrics, runs of mqttload, rows of the tables
processes    programs that run beside a broker, or in its place
logs         generated logs of any size
loads        loads, and how those that only foldmq has are measured
comparison   rounds of all brokers, the released version, tables
attacks      attacks, the clients beside them, and what is observed
"""
