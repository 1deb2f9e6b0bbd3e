"""All commands in the order of `comfyrelay --help`, which imports none of their modules."""

from comfyrelay.cli.lazy import LazyCommand

DESK = "On your own machine"
JOBS = "Jobs, here or elsewhere"
SERVERS = "Servers and workers"
BACKUP = "Backup"
COMMANDS = {
    "up": LazyCommand(
        DESK,
        "desk.up:up",
        "Run your desk on this machine until Ctrl-C: a queue, its web page, and a worker for your ComfyUI.",
    ),
    "open": LazyCommand(
        DESK, "desk.page:open_desk", "Open the page of the desk running on this machine in the browser."
    ),
    "run": LazyCommand(DESK, "jobs.run:run", "Run a workflow or effect once, and save its outputs."),
    "batch": LazyCommand(
        DESK, "jobs.batch:batch_app", "Add many jobs at once, from a folder of inputs or a list of prompts."
    ),
    "password": LazyCommand(
        DESK,
        "desk.page:password",
        "Set the password that opens the page on another machine, such as a phone. `up --host` requires one.",
    ),
    "doctor": LazyCommand(DESK, "desk.page:doctor", "Check that this machine is ready for `up`."),
    "batch-i2v": LazyCommand(
        DESK, "desk.batch_i2v:batch_i2v", "Run a graph on every image or video of a folder, on any ComfyUI."
    ),
    "comfyui": LazyCommand(
        DESK, "desk.comfyui:comfyui_app", "Inspect the ComfyUI processes that ComfyRelay starts here."
    ),
    "nodes": LazyCommand(DESK, "desk.nodes:nodes_app", "Update the list of the packages that nodes belong to."),
    "jobs": LazyCommand(JOBS, "jobs.listing:jobs", "List jobs, newest first."),
    "batches": LazyCommand(
        JOBS,
        "jobs.listing:batches",
        "List batches, newest first, with their progress, outcomes and expected remaining time.",
    ),
    "show": LazyCommand(
        JOBS, "jobs.listing:show", "Show a job or batch with its progress, wait reason, errors and files."
    ),
    "logs": LazyCommand(JOBS, "jobs.listing:logs", "Print the log of a job."),
    "cancel": LazyCommand(JOBS, "jobs.actions:cancel", "Cancel jobs or batches."),
    "pause": LazyCommand(
        JOBS, "jobs.actions:pause", "Pause the queue, or only some jobs or batches, until they are resumed."
    ),
    "resume": LazyCommand(JOBS, "jobs.actions:resume", "Resume the queue, or paused jobs or batches."),
    "retry": LazyCommand(
        JOBS, "jobs.actions:retry", "Retry failed or canceled jobs, or the failed items of batches, as new jobs."
    ),
    "rerun": LazyCommand(
        JOBS,
        "jobs.actions:rerun",
        "Run ended jobs or batches again, even completed ones, with the same values as new jobs or batches.",
    ),
    "delete": LazyCommand(
        JOBS,
        "jobs.actions:delete",
        "Delete ended jobs or batches with their logs, outputs and files in the desk's output folder.",
    ),
    "move": LazyCommand(JOBS, "jobs.actions:move", "Move waiting jobs or batches in the queue."),
    "top": LazyCommand(
        JOBS,
        "jobs.listing:top",
        "Watch the queue in the terminal, and pause, cancel, retry or move jobs, until q or Ctrl-C.",
    ),
    "presets": LazyCommand(
        JOBS, "jobs.library:presets_app", "List your presets, which are named sets of values, or add or remove one."
    ),
    "workflows": LazyCommand(
        JOBS,
        "jobs.library:workflows_app",
        "List your own workflows, newest first, or add, rename, replace or remove one.",
    ),
    "notify": LazyCommand(JOBS, "jobs.library:notify_app", "Test the notifications about ended jobs."),
    "server": LazyCommand(
        SERVERS, "servers.server:server", "Serve a queue for many users and workers over HTTP, until Ctrl-C."
    ),
    "reconcile": LazyCommand(SERVERS, "servers.server:reconcile", "Check that queue, jobs and ledger are consistent."),
    "simulator": LazyCommand(
        SERVERS, "servers.simulator:simulator", "Simulate ComfyUI without a GPU or models, until Ctrl-C."
    ),
    "gateway": LazyCommand(
        SERVERS,
        "servers.gateway:gateway",
        "Serve ComfyUI's API on this machine for programs that send no token, until Ctrl-C.",
    ),
    "version": LazyCommand(SERVERS, "main:version", "Print the version."),
    "db": LazyCommand(SERVERS, "servers.admin:db_app", "Check and upgrade the schemas of the databases."),
    "upgrade": LazyCommand(
        SERVERS, "servers.upgrade:upgrade", "Upgrade the central database and all shards to the newest schema."
    ),
    "admin": LazyCommand(
        SERVERS,
        "servers.admin:admin_app",
        "Create administrators of a server, permit own workflows, and list the workers' nodes.",
    ),
    "worker": LazyCommand(
        SERVERS,
        "servers.worker:worker_app",
        "Take jobs from a server and run them on this machine's ComfyUI, or on Comfy Cloud, until Ctrl-C.",
    ),
    "fleet": LazyCommand(
        SERVERS, "fleet.app:fleet_app", "Create fleets, and scale, provision and inspect their machines."
    ),
    "backup": LazyCommand(
        BACKUP,
        "desk.backup:backup",
        "Back up the queue, files, outputs and secrets of a desk or a server on SQLite, even while it runs.",
    ),
    "restore": LazyCommand(
        BACKUP, "desk.backup:restore", "Restore a backup, and check that its queue, jobs and ledger are consistent."
    ),
}
