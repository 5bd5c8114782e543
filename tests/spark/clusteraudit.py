"""A program that audits logs with Spark, however small they are: its standard output is the report.

Arguments: the address of Spark's master, its settings and the options of the source, as JSON.
"""

import json
import sys

from spark.jobs.pipeline import NOTHING, audit
from spark.report.json_report import audit_json
from spark.runtime.session import running_session
from spark.tables.log import Log

if __name__ == "__main__":
    master, settings, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    with running_session(master, "600m", settings, log_bytes=0) as session:
        print(json.dumps(audit_json(audit(Log(session, options), local=NOTHING))))
