"""Distribution of test files to processes of pytest-xdist, in time linear in the number of tests.

xdist searches the list of all tests for each one that it sends, and counts all tests of a process after each one that
ends: with 40,000 tests that takes a minute of its main process.
"""

from xdist.scheduler import LoadFileScheduling


class FileScheduling(LoadFileScheduling):
    """As ``--dist loadfile``; the work of a process has only tests that it has not finished."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        self._indices = {}

    def mark_test_complete(self, node, item_index, duration=0):
        test = self.registered_collections[node][item_index]
        file, assigned = self._split_scope(test), self.assigned_work[node]
        del assigned[file][test]
        if not assigned[file]:
            del assigned[file]
        self._reschedule(node)

    def _assign_work_unit(self, node):
        file, tests = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[file] = tests
        if node not in self._indices:
            self._indices[node] = {test: k for k, test in enumerate(self.registered_collections[node])}
        node.send_runtest_some([self._indices[node][test] for test in tests])

    def _pending_of(self, workload):
        return sum(map(len, workload.values()))
