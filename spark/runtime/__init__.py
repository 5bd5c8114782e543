"""Spark itself: sessions, Java, the JVM, and errors on their way through it."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.runtime.errors import (
        NoSpark,
        NotWritable,
        OutOfDisk,
        SparkError,
        install_command,
    )
    from spark.runtime.java import find_java
    from spark.runtime.machine import available_memory, usable_cores
    from spark.runtime.marked_errors import (
        BadOption,
        OtherLog,
        SparkFailure,
        find_error,
        mark_errors,
        marked_iterator,
        name_log_in_errors,
    )
    from spark.runtime.session import (
        check_settings,
        is_local,
        is_submitted,
        kill_jvm,
        require_pyspark,
        running_session,
        set_shuffle_partitions,
        spark_session,
        translate_errors,
    )
    from spark.runtime.sync_calls import run_sync
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "errors": "NoSpark NotWritable OutOfDisk SparkError install_command",
            "java": "find_java",
            "machine": "available_memory usable_cores",
            "marked_errors": (
                "BadOption OtherLog SparkFailure find_error mark_errors marked_iterator "
                "name_log_in_errors"
            ),
            "session": (
                "check_settings is_local is_submitted kill_jvm require_pyspark "
                "running_session set_shuffle_partitions spark_session translate_errors"
            ),
            "sync_calls": "run_sync",
        },
    )

__all__ = [
    "BadOption",
    "NoSpark",
    "NotWritable",
    "OtherLog",
    "OutOfDisk",
    "SparkError",
    "SparkFailure",
    "available_memory",
    "check_settings",
    "find_error",
    "find_java",
    "install_command",
    "is_local",
    "is_submitted",
    "kill_jvm",
    "mark_errors",
    "marked_iterator",
    "name_log_in_errors",
    "require_pyspark",
    "run_sync",
    "running_session",
    "set_shuffle_partitions",
    "spark_session",
    "translate_errors",
    "usable_cores",
]
