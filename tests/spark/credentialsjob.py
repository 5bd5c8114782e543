"""A job that reads a damaged log with a password and shows everything that Spark can show."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[2]))


def processes() -> str:
    """The command lines of all processes that can be seen."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(line for line in lines if "pyspark" in line or "spark" in line)


def main(events: str, port: str, stream: str) -> None:
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{events}")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        # What is generated has none of a plan's text, and to log it takes longest.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("DEBUG")
    password = sys.stdin.read()
    inside = {"nats": f"nats://broker:{password}@127.0.0.1:{port}"}
    given = {"nats": f"nats://127.0.0.1:{port}", "user": "broker", "password": password}
    for options in (inside, given):
        reader = session.read.format("foldmq").options(**options, stream=stream)
        reader.load().explain(True)
        reader.load().where("type = 'WillFired'").explain("formatted")
        print(processes())
        try:
            reader.load().collect()
        except Exception as error:  # noqa: BLE001 - all that it says is looked at
            print(error)
    secret = f"s3://KEYOFARCHIVE:{password}@bucket/a?nonsense={password}"
    archive = session.read.format("foldmq").options(archive=secret).load()
    for show in (lambda: archive.explain(True), archive.collect):
        try:
            show()
        except Exception as error:  # noqa: BLE001
            print(error)
    stream_query = (
        session.readStream.format("foldmq").options(**inside, stream=stream, mode="PERMISSIVE")
        .load().writeStream.format("memory").queryName("t").trigger(availableNow=True)
        .option("checkpointLocation", f"{events}/checkpoint").start()
    )  # fmt: skip
    stream_query.awaitTermination()
    stream_query.explain(True)
    print(stream_query.lastProgress)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
