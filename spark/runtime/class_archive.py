"""An archive of the classes that Spark loads: Java maps it into memory instead of reading jars.

To find, read and verify more than 10,000 classes takes a third of the processor time of a short
job. An archive (class data sharing) has them ready. It belongs to one PySpark at one place, and is
in the user's cache directory; Java itself ignores an archive of another Java or of other jars.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from eventstore.home_paths import user_cache
from spark.runtime.errors import NoSpark, disk_failed

RECORD_SECONDS = 900.0
"""Time that Java may take to store the classes when it ends."""
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The directory of an archive; also the home of Spark, whose path the archive contains."""

    folder: Path

    @property
    def file(self) -> Path:
        """The archive."""
        return self.folder / "classes.jsa"

    @property
    def draft(self) -> Path:
        """The archive while Java writes it."""
        return self.folder / "classes.new"

    @property
    def usable(self) -> bool:
        """Whether there is an archive that only this user could have written."""
        try:
            found = [path.stat() for path in (self.folder, self.file)]
        except OSError:
            return False
        user = os.geteuid()
        return all(one.st_uid == user and not one.st_mode & _OTHERS_WRITE for one in found)

    def prepare(self) -> None:
        """Make the directory for recording; raises OutOfDisk or another error of the disk."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.draft.unlink(missing_ok=True)
        except OSError as error:
            raise disk_failed(error) from None

    def keep(self) -> int:
        """Use what Java has recorded from now on; return its bytes. Raises NoSpark."""
        try:
            self.draft.chmod(0o600)
            self.draft.replace(self.file)
            return self.file.stat().st_size
        except FileNotFoundError:
            raise NoSpark("Java stored no classes: jobs start as before") from None
        except OSError as error:
            raise disk_failed(error) from None


def find_class_archive(package: Path, version: str) -> ClassArchive | None:
    """Return the place of the archive for a PySpark; None if the user has no cache directory."""
    cache = user_cache()
    key = hashlib.sha256(f"{package}\n{version}".encode()).hexdigest()[:16]
    return ClassArchive(cache / f"spark-{key}") if cache is not None else None
