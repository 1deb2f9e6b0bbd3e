"""Jobs of a pool by id: all unfinished ones, and the last finished ones."""

import asyncio
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from comfyrelay.comfyui.pool.job import PoolJob
from comfyrelay.comfyui.pool.record import Record
from comfyrelay.errors import NotFound


class Registry:
    def __init__(self, *, keep_finished: int) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._keep_finished = keep_finished
        self._records: dict[str, Record] = {}
        self._jobs: dict[str, PoolJob] = {}
        self._finished: deque[str] = deque()

    @property
    def jobs(self) -> Mapping[str, PoolJob]:
        return MappingProxyType(self._jobs)

    @property
    def records(self) -> list[Record]:
        return list(self._records.values())

    @property
    def unfinished(self) -> list[Record]:
        return [record for record in self._records.values() if not record.is_done]

    def add(self, record: Record, job: PoolJob) -> None:
        self._records[job.id] = record
        self._jobs[job.id] = job
        self.idle.clear()

    def job(self, job_id: str) -> PoolJob:
        self.record(job_id)
        return self._jobs[job_id]

    def record(self, job_id: str) -> Record:
        try:
            return self._records[job_id]
        except KeyError:
            raise NotFound(f"This pool has no job {job_id}.") from None

    def finished(self, job_id: str) -> list[str]:
        """Record that a job has ended. Returns the finished jobs to forget."""
        self._finished.append(job_id)
        forgotten = []
        while len(self._finished) > self._keep_finished:
            oldest = self._finished.popleft()
            del self._records[oldest]
            del self._jobs[oldest]
            forgotten.append(oldest)
        if len(self._records) == len(self._finished):
            self.idle.set()
        return forgotten
