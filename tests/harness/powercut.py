"""A disk whose power can be cut: an ext4 file system in an image file, on a loop device.

A power cut loses all data that was not handed to the disk. The cut is ext4's own shutdown (the
ioctl that the tests of file systems use): from that moment on no dirty page and no part of the
journal is written any more, as if the machine had stopped. The file system that is mounted
afterwards, with the journal replayed, is the content of the disk at that moment. Nothing is written
back early either: the flusher of the kernel leaves pages alone for 30 seconds, and ``commit=600``
keeps the journal from ending a transaction by itself.

A disk has a cache of its own. `Disk(cache="kept")` keeps all data that it was given, flushed or
not. `Disk(cache="lost")` keeps only data that it was told to flush: its image is on a second file
system of that kind, in whose page cache a write stays until the loop device is flushed, and the
power is cut there.
"""

import contextlib
import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Literal

Cache = Literal["kept", "lost"]

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
_WITHOUT_JOURNAL = 2
"""EXT4_GOING_FLAGS_NOLOGFLUSH: what the journal holds in memory is lost too."""
_MIB = 1 << 20
_SIZES = {"kept": [256 * _MIB], "lost": [512 * _MIB, 256 * _MIB]}
"""Bytes of the images, the outermost first; they are sparse."""


class UnusableError(Exception):
    """This machine cannot do it: no rights, no loop devices, or no ext4."""


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise UnusableError(f"{command[0]}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise UnusableError(f"{' '.join(command)}: {error.stderr.strip()}") from None
    return done.stdout.strip()


class Volume:
    """A file system in the file `image`, mounted at the directory `place`."""

    def __init__(self, image: Path, place: Path) -> None:
        self.place = place
        self._image = image
        self._device = ""
        self._mounted = False

    def make(self, size: int) -> None:
        with self._image.open("wb") as out:
            out.truncate(size)
        options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=8", "-E", options, str(self._image))
        with self._image.open("rb+") as made:  # it is no part of what a cut may undo
            os.fsync(made.fileno())

    def mount(self) -> None:
        """Attaches and mounts; what the journal holds is replayed."""
        self.place.mkdir(exist_ok=True)
        self._device = _run("losetup", "--find", "--show", "--direct-io=off", str(self._image))
        _run("mount", "-t", "ext4", "-o", "commit=600,noatime", self._device, str(self.place))
        self._mounted = True

    def shut_down(self) -> None:
        """From now on nothing is written to the device."""
        place = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(place, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
        except OSError as error:
            raise UnusableError(f"ext4 cannot be shut down: {error.strerror}") from None
        finally:
            os.close(place)

    def unmount(self) -> None:
        """Unmounts as soon as no process uses it, and releases the device."""
        if self._mounted:
            try:
                _run("umount", str(self.place))
            except UnusableError:  # still in use: it goes when its users end
                _run("umount", "-l", str(self.place))
            self._mounted = False
        if self._device:
            device, self._device = self._device, ""
            _run("losetup", "--detach", device)


class Disk:
    """A disk with a file system at `place`; all its files lie in the new directory `folder`."""

    def __init__(self, folder: Path, cache: Cache) -> None:
        """Raises `UnusableError` where this cannot be had."""
        folder.mkdir()
        self._volumes: list[Volume] = []
        beneath = folder
        try:
            for number, size in enumerate(_SIZES[cache]):
                volume = Volume(beneath / "image", folder / f"mount{number}")
                self._volumes.append(volume)
                volume.make(size)
                volume.mount()
                beneath = volume.place
        except UnusableError:
            self.close()
            raise
        self.place = beneath

    def sync(self) -> None:
        """Writes all that is not on disk yet."""
        _run("sync", "--file-system", str(self.place))

    def cut(self) -> None:
        """Cuts the power: what the disk has not got yet, it never gets."""
        self._volumes[0].shut_down()

    def power_on(self) -> None:
        """Mounts what the disk held when the power was cut; nothing may use it meanwhile."""
        for volume in reversed(self._volumes):
            volume.unmount()
        for volume in self._volumes:
            volume.mount()

    def close(self) -> None:
        """Unmounts everything and gives the devices free, whatever happened."""
        for volume in reversed(self._volumes):
            with contextlib.suppress(UnusableError):
                volume.unmount()
