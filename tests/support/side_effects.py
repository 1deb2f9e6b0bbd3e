"""List the functions with side effects outside the databases, and the tests that kill a process in them.

`find_side_effects` reads the source, so a new side effect without an entry here fails a test.
"""

import ast
from collections.abc import Iterator, Mapping

from tests.support.kill_points import KillPoint, When
from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "comfyrelay"
# The simulator and the commands belong to neither a desk nor a worker. `system` and `store` change files only for
# callers, which are listed.
LEFT_OUT = frozenset({"cli", "simulator", "store", "system"})

# Calls with a side effect: functions of modules, methods of object stores, paths and processes, and plain names.
_OF_MODULE = {
    "atomic": {"replacing", "write", "write_new"},
    "Child": {"start"},
    "detached": {"run", "start"},
    "files": {"link_new", "move", "remove", "remove_tree", "replace"},
    "os": {"link", "remove", "rename", "replace", "rmdir", "symlink", "truncate", "unlink"},
    "service": {"notify"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "rmtree"},
    "subprocess": {"Popen", "run"},
    "tempfile": {"NamedTemporaryFile", "TemporaryDirectory", "mkdtemp"},
}
_OF_OBJECTS = {"copy", "put", "receive", "remove", "remove_many"}
_OF_ANYTHING = {"rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text"}
_NAMED = {"FileWriter", "mkdtemp", "part_of", "remove", "remove_tree", "replacing", "write_new"}
_SENDING = {"post", "put", "request", "send", "send_once"}
_SENDERS = {"_http", "http", "_client", "client"}

_TWICE: tuple[When, ...] = ("before", "after")
_THREE_TIMES: tuple[When, ...] = ("before", "inside", "after")
# A day at a desk, in order: first start, upload, run, copy, reuse, deletion.
_DESK: dict[str, tuple[When, ...]] = {
    "desk.data_folder:try_sqlite": _THREE_TIMES,
    "desk.examples:write_sample": _THREE_TIMES,
    "server.http.secrets:_generate": _THREE_TIMES,
    "desk.startup.first_start:create_initial_data": _TWICE,
    "services.catalogue.graphs:Graphs._put": _TWICE,
    "worker.state:_write": _THREE_TIMES,
    "services.catalogue.node_definitions:NodeDefinitionService.store": _TWICE,
    "desk.simulated_jobs:SimulationPolicy.note_comfyui": _TWICE,
    "storage.folder:ObjectWriter.open": _THREE_TIMES,
    "http_client:save": _THREE_TIMES,
    "comfyui.client.uploads:Uploader._send": _TWICE,
    "comfyui.runs.submit:post_graph": _TWICE,
    "worker.files.transfers:Transfers.upload": _TWICE,
    "desk.batches.output_copies:_put": _THREE_TIMES,
    "media.probe_process:ProbeProcess.__init__": _TWICE,
    "services.queue.outputs:Outputs._copy": _TWICE,
    "services.queue.posters:Posters._draw": _TWICE,
    "services.queue.outputs:Outputs._remove": _TWICE,
    "worker.files.run_folders:_remove": _TWICE,
    "worker.files.inputs:Inputs.clean": _TWICE,
    "worker.state:StateFolder.forget": _THREE_TIMES,
    "services.jobs.submission.reuse:Reuse._copy_output": _TWICE,
    "services.jobs.submission.reuse:Reuse._copy_previews": _TWICE,
    "desk.batches.copy_journal:CopyJournal.add": _THREE_TIMES,
    "desk.batches.output_copies:remove_copies": _THREE_TIMES,
    "services.jobs.removal:Removals._remove_objects": _TWICE,
    "storage.folder:Folder.copy": _THREE_TIMES,
    "storage.folder:Folder.remove": _THREE_TIMES,
    "desk.batches.copy_journal:CopyJournal.remove": _TWICE,
}


def _points(functions: Mapping[str, tuple[When, ...]]) -> list[KillPoint]:
    return [KillPoint(function=function, when=when) for function, moments in functions.items() for when in moments]


# Later calls of a function have other effects: they copy for the gallery, and copy a reused output.
_LATER_CALLS = [
    KillPoint(function="desk.batches.output_copies:_put", when=when, call=call)
    for call in (2, 3)
    for when in _THREE_TIMES
]
DESK_KILL_POINTS = [*_points(_DESK), *_LATER_CALLS]
BACKUP_KILL_POINTS = _points(
    {
        "services.backup.copy_file:store_file": _THREE_TIMES,
        "services.backup.manifest:Manifest.write": _THREE_TIMES,
        "services.backup.create:create_backup": ("inside",),
    }
)
RESTORE_KILL_POINTS = [
    *_points(
        {
            "services.backup.restore:_Plan.write": _THREE_TIMES,
            "services.backup.copy_file:restore_file": _THREE_TIMES,
            "services.backup.restore:_move": ("before", "inside"),
        }
    ),
    # A kill between any two files.
    *(KillPoint(function="system.files:move", when="after", call=call) for call in (1, 3, 8)),
]
# The backup has been restored, and only staged files are left.
RESTORED_KILL_POINTS = _points(
    {"services.backup.restore:_move": ("after",), "services.backup.restore:_remove_stages": _TWICE}
)

SCRIPT_KILL_POINTS = _points(
    {
        "desk.scripts.frozen_inputs:FrozenInputs._write": _THREE_TIMES,
        "desk.scripts.frozen_inputs:FrozenInputs._copy_inputs": _THREE_TIMES,
        "desk.scripts.frozen_inputs:_move": _TWICE,
        "desk.scripts.frozen_inputs:FrozenInputs.sweep": _TWICE,
    }
)
# Local files as inputs of a batch, and an output as an input.
UPLOAD_KILL_POINTS = _points(
    {
        "services.jobs.uploads:Uploads._copy": _THREE_TIMES,
        "services.jobs.uploads:Uploads._copy_group": _TWICE,
        "services.jobs.uploads:Uploads.copy_output": _THREE_TIMES,
    }
)
# The leader of a fleet launches and ends a machine; `TESTED_BY` covers the machine's own process.
LOCAL_MACHINE_KILL_POINTS = _points(
    {
        "autoscaling.providers.local:_remove_old": _TWICE,
        "autoscaling.providers.local:_LocalMachine.order": _THREE_TIMES,
        "autoscaling.providers.local:LocalProvider._start": _TWICE,
        "autoscaling.providers.local:_LocalMachine.end": _THREE_TIMES,
    }
)
# A worker starts two managed ComfyUI processes, which share a GPU through MPS.
SUPERVISOR_KILL_POINTS = [
    *_points(
        {
            "comfyui.processes.mps:_remove_folder": _TWICE,
            "comfyui.processes.mps:Mps._write_record": _THREE_TIMES,
            "comfyui.processes.mps:_Daemon.start": _THREE_TIMES,
            "comfyui.processes.mps:_Daemon._send_command": _TWICE,
            "comfyui.processes.process:ComfyProcess.start": _TWICE,
        }
    ),
    # The first state of each process is not written, because it has no folder yet.
    *(KillPoint(function="comfyui.processes.state_files:write", when=when, call=3) for when in _THREE_TIMES),
]
# Webhooks and notifications of an ended job. The first start writes the first record of notified jobs.
MESSAGE_KILL_POINTS = [
    *_points({"services.webhooks.sender:WebhookSender._post": _TWICE, "desk.notifications.notifier:_send": _TWICE}),
    *(KillPoint(function="desk.notifications.sender:NotificationSender._record", when=when, call=2) for when in _TWICE),
]
# A run at a cloud service costs money.
CLOUD_KILL_POINTS = _points(
    {
        "comfyui.comfy_api.run:ApiRun._post": _TWICE,
        "comfyui.comfy_api.job_api:JobApi.cancel": _TWICE,
    }
)
ALL_KILL_POINTS = [
    *DESK_KILL_POINTS,
    *BACKUP_KILL_POINTS,
    *RESTORE_KILL_POINTS,
    *RESTORED_KILL_POINTS,
    *SCRIPT_KILL_POINTS,
    *UPLOAD_KILL_POINTS,
    *LOCAL_MACHINE_KILL_POINTS,
    *SUPERVISOR_KILL_POINTS,
    *MESSAGE_KILL_POINTS,
    *CLOUD_KILL_POINTS,
]
# Functions called by a function with kill points, or in the same step of a test.
COVERED_BY = {
    "apprise_urls:send_message": "desk.notifications.notifier:_send",
    "comfyui.client.client:ComfyClient.delete_run": "worker.files.run_folders:_remove",
    "desk.batches.copy_journal:CopyJournal.entries": "desk.batches.copy_journal:CopyJournal.add",
    "desk.batches.output_copies:OutputCopies.remove_leftovers": "desk.batches.copy_journal:CopyJournal.add",
    "desk.batches.output_copies:_remove_leftover": "desk.batches.copy_journal:CopyJournal.add",
    "desk.batches.output_copies:_try_link": "desk.batches.output_copies:_put",
    "http_client:Http.send": "comfyui.runs.submit:post_graph",
    "server.operations.files:upload": "storage.folder:ObjectWriter.open",
    "services.backup.create:_remove_killed": "services.backup.manifest:Manifest.write",
    "services.backup.restore:restore_backup": "services.backup.restore:_remove_stages",
    "services.backup.restore:undo_killed_restore": "services.backup.restore:_move",
    "services.jobs.uploads:Uploads._send": "services.jobs.uploads:Uploads._copy",
    "storage.folder:Folder._prune": "storage.folder:Folder.remove",
    "worker.control:ControlPlane._request": "worker.files.transfers:Transfers.upload",
    "worker.state:StateFolder.open": "worker.state:_write",
}
# Functions in which other tests kill a process, or whose step they repeat after a crash.
TESTED_BY = {
    "services.backup.before_upgrade:copy_before_upgrade": "test_leftovers_of_a_killed_copy_are_replaced",
    "autoscaling.providers.command:CommandProvider._run": "test_new_leader_orders_the_same_machine_after_a_crash",
    "autoscaling.providers.local_machine:main": "test_order_started_twice_makes_one_machine",
    "autoscaling.providers.local_machine:_until_answering": "test_killing_one_process_of_a_machine_stops_all",
    "comfyui.client.client:ComfyClient.cancel": "test_run_from_before_the_kill_is_stopped",
    "comfyui.client.client:ComfyClient.interrupt": "test_run_from_before_the_kill_is_stopped",
    "comfyui.client.client:ComfyClient.remove": "test_run_from_before_the_kill_is_stopped",
    "desk.scripts.log:BoundedLog._shorten": "test_log_that_a_killed_desk_was_shortening_is_kept_without_leftovers",
    "desk.scripts.runner:ScriptRunner._watch": "test_script_and_its_children_die_with_the_desk",
    "services.jobs.views.posters:PendingPosters._draw": "test_input_poster_is_retried_after_a_crash",
    "services.operations.retention:Retention._remove_objects_of": "test_retention_recovers_from_a_crash_at_any_step",
    "desk.batches.gallery_export:_local_file": "test_leftovers_of_a_killed_desk_are_removed",
    "storage.folder:Folder.sweep": "test_sweep_continues_after_a_file_that_vanishes",
    "worker.state:StateFolder.forget_upload": "test_input_read_after_its_worker_was_killed_is_removed",
}
# A kill in these functions cannot lose, repeat or leave behind anything.
HARMLESS = {
    "autoscaling.kubernetes.pods:Pods._call": "sets the deletion cost of a pod, again after each decision",
    "autoscaling.providers.local:LocalProvider.__init__": "only an annotation",
    "client.calls:Calls._call": "requests of commands have idempotency keys",
    "comfyui.client.client:ComfyClient.free": "frees memory; after a kill the next run frees it",
    "comfyui.client.model_files:ModelFiles.details": "only reads",
    "comfyui.client.model_files:ModelFiles.metadata": "only reads",
    "comfyui.comfy_api.assets:AssetUploader._exists": "only reads",
    "comfyui.comfy_api.assets:AssetUploader.forget_uploads": "a cache; without it files are uploaded again",
    "comfyui.comfy_api.assets:_write_id": "one atomic write of a cache; without it a file is uploaded again",
    "comfyui.comfy_api.job_api:JobApi.check": "only reads",
    "comfyui.comfy_api.job_api:JobApi.find": "an empty graph, which is never accepted",
    "comfyui.comfy_api.job_api:JobApi.job": "only reads",
    "comfyui.processes.gpus:_run_tool": "only reads",
    "comfyui.processes.launch:_link": "repeated at each start of a managed ComfyUI",
    "comfyui.processes.launch:empty_folders": "removes files of earlier processes, again at each start",
    "comfyui.processes.log:ProcessLog._rotate": "renames logs; a kill between two renames loses the oldest lines only",
    "comfyui.processes.python:check_python": "only reads",
    "desk.password:remove_password": "one removal: the password is valid or not",
    "desk.page_settings.file:write_document": "one atomic write; a starting desk removes temporary files",
    "desk.password:set_password": "one atomic write; a starting desk removes temporary files",
    "desk.scripts.config:script_settings": "one atomic write, repeated at the next start",
    "desk.scripts.server:_new_log": "removes logs over a limit, again before the next run",
    "gateway.proxy:Gateway._pass_on": "passes a request of a program on",
    "services.catalogue.assets:Assets.remove_abandoned": "repeated by retention",
    "services.catalogue.assets:Assets.saving": "removes copies of a refused change, which nothing uses",
    "services.catalogue.assets:SavedAssets._save": "a kill leaves a copy that nothing uses; save again",
    "services.catalogue.node_definitions:NodeDefinitionService.remove_unused": "repeated by retention",
    "services.jobs.uploads:Uploads.receive": "its removal is scheduled before the file is stored",
    "services.operations.erasure:Erasure._remove_objects": "repeated until no upload URL is valid",
    "worker.comfyui.packing_results:PackingResults.save": "one atomic write; without it the number is measured again",
    "services.operations.storage_check:StorageChecks._check_parts": "the next check removes earlier files",
    "services.operations.storage_check:StorageChecks._remove": "repeated by the next check",
    "services.outbox.delivery:_removal": "a statement of a database",
    "services.queue.previews:PreviewService._remove": "repeated by retention",
    "services.queue.previews:PreviewService.sweep": "repeated by retention",
    "worker.files.assets:AssetCache._fetch": "a cache; loading it removes incomplete files",
    "worker.files.assets:AssetCache._load": "a cache, loaded at each start",
    "worker.files.assets:AssetCache._make_room": "a cache, bounded at each use",
    "worker.host.imds:Imds._valid_token": "asks for a token, which expires; the next start asks for another",
    "worker.state:StateFolder._unfinished_entries": "removes an unreadable file, at each start",
    "worker.state:StateFolder.delete_token": "the worker registers again without it",
    "worker.state:StateFolder.forget_unfinished": "one removal; after a kill the run is looked up again",
    "worker.state:StateFolder.held_leases": "removes an unreadable file, at each start",
}


def find_side_effects() -> dict[str, list[str]]:
    """Return all functions with side effects as `module:qualified_name`, and their calls."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in LEFT_OUT:
            continue
        for name, calls in functions_with_side_effects(ast.parse(path.read_text("utf-8"))):
            found[f"{'.'.join(parts)}:{name}"] = calls
    return found


def functions_with_side_effects(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_with_side_effects(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = {call for child in ast.walk(node) if (call := _side_effect(child)) is not None}
            if calls:
                yield f"{prefix}{node.name}", sorted(calls)


def _side_effect(node: ast.AST) -> str | None:
    """Return the call if it has a side effect, also if it passes such a function to a thread."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMED:
        return node.id
    if not isinstance(node, ast.Attribute):
        return None
    owner = node.value.func if isinstance(node.value, ast.Call) else node.value
    base = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    is_effect = (
        node.attr in _OF_MODULE.get(base, ())
        or (base in ("_objects", "objects") and node.attr in _OF_OBJECTS)
        or (base in _SENDERS and node.attr in _SENDING)
        or node.attr in _OF_ANYTHING
    )
    return f"{base}.{node.attr}" if is_effect else None
