"""A streaming query that reads a few records at a time, until it is killed."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from harness.spark_plans import INTERPRETED


def main(folder: str, port: str, stream: str) -> None:
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config(map=dict(INTERPRETED))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    options = {
        "nats": f"nats://127.0.0.1:{port}",
        "user": "broker",
        "password": "secret",
        "stream": stream,
        "columns": "seq,index,session",
        "maxRecordsPerTrigger": "20",
    }
    query = (
        session.readStream.format("foldmq").options(**options).load()
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )  # fmt: skip
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
