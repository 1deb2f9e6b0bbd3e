"""Services for clients of ComfyUI's own API: their prompts, input files, node definitions, saved files and sessions."""

from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.comfyui_api.documents import EditorDocuments
from comfyrelay.services.comfyui_api.images import Images
from comfyrelay.services.comfyui_api.input_files import InputFiles
from comfyrelay.services.comfyui_api.nodes import Nodes
from comfyrelay.services.comfyui_api.prompts import Prompts
from comfyrelay.services.comfyui_api.sessions import EditorSessions
from comfyrelay.services.comfyui_api.submission import PromptSubmission
from comfyrelay.services.comfyui_api.user_files import UserFiles
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs import Jobs
from comfyrelay.services.queue import Queue, open_probes

__all__ = ["ComfyuiApi"]


class ComfyuiApi:
    def __init__(self, context: ServiceContext, catalogue: Catalogue, queue: Queue, jobs: Jobs) -> None:
        databases = context.databases
        self.prompts = Prompts(databases, queue.control)
        self.input_files = InputFiles(databases, jobs.uploads, self.prompts)
        # Separate processes, so that viewing images does not delay checking outputs.
        self.images = Images(context.objects, open_probes(context.settings))
        self.nodes = Nodes(catalogue.node_definitions, self.input_files, script_packs=context.settings.editor_packs)
        self.submission = PromptSubmission(
            databases,
            catalogue.node_definitions,
            jobs.graph_jobs,
            queue.control,
            self.input_files,
            graphs=catalogue.graphs,
            max_space_bytes=context.settings.max_workflow_bytes,
        )
        self.user_files = UserFiles(databases)
        self.documents = EditorDocuments(catalogue, jobs, self.prompts, users_are_owners=context.hooks.users_are_owners)
        self.sessions = EditorSessions(databases)
