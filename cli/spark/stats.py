"""``foldmq spark stats``: the traffic of a log, by topic, client and QoS."""

import sys

from cli.common import text
from cli.common.units import seconds
from cli.logs.point_resolution import parse_point
from cli.spark.job_runner import Job, check_html, run_job, save_html
from cli.spark.log_location import Found, since
from cli.spark.output import output_target, save
from cli.spark.spark_flags import SparkFlags, StatsFlags
from eventstore.errors import UsageError
from spark.report.traffic_plots import traffic_page
from spark.report.traffic_report import traffic_json, traffic_text
from spark.report.traffic_stats import TRAFFIC_KEYS, measure_traffic
from spark.tables.directories import directory_text

TOP = 20
_LONGEST_S = 36_500 * 86_400


def run_stats(flags: SparkFlags, options: StatsFlags, *, as_json: bool) -> None:
    """Print the traffic of a log, or write it by window to a directory; and as a page.

    Raises UsageError for an invalid window or grouping.
    """
    html, top = options.html, options.top
    keys = tuple(part.strip() for part in options.by.split(",") if part.strip())
    unknown = [key for key in keys if key not in TRAFFIC_KEYS]
    if unknown:
        raise UsageError(
            f"cannot group by {unknown[0]!r}: must be some of {','.join(TRAFFIC_KEYS)}"
        )
    span = _window(options.window)
    to = output_target(options.output, None, None) if options.output is not None else None
    if html is not None:
        check_html(html)
    begin, end = (
        None if point is None else parse_point(point) for point in (options.start, options.end)
    )

    async def beginning(place: Found) -> dict[str, str]:
        return since(place, begin)

    def work(job: Job, bounds: dict[str, str]) -> None:
        with job.busy("counting") as tell:
            log = job.log.having(**bounds)
            stats = measure_traffic(log, by=keys, levels=options.levels, window_s=span, tell=tell)
            try:
                if to is not None:
                    rows = save(stats.windows, to)
                    lines = (
                        f"{text.count_of(rows, 'row')} in {directory_text(to.directory or '')}\n"
                    )
                elif as_json:
                    lines = text.json_line(traffic_json(stats, top)) + "\n"
                else:
                    lines = traffic_text(stats, top or TOP)
                if html is not None:
                    save_html(html, traffic_page(stats, top or TOP))
            finally:
                stats.close()
        sys.stdout.write(lines)

    run_job(flags, end, beginning, work)


def _window(written: str) -> int:
    try:
        span = seconds(written)
    except ValueError as error:
        raise UsageError(f"--window {written!r} {error}") from None
    if not isinstance(span, float) or span < 1 or not span.is_integer():
        raise UsageError(f"--window {written!r} must be a number of whole seconds, 1s or more")
    if span > _LONGEST_S:
        raise UsageError(f"--window {written!r} must be at most 36500d")
    return int(span)
