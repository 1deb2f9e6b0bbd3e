import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Ban, CircleCheck, KeyRound, LockOpen, Pause, Play } from "lucide-react";
import { useState } from "react";
import { Button, Dialog, toast, toastProblem } from "@/kit";
import { useKeys } from "@/lib/keyboard";
import { console as shared } from "@/texts/console";
import { worker as texts } from "@/texts/console-workers";
import { type WorkerDetails, workerActions, worker as workerQuery } from "../queries/workers";
import { consoleKeys } from "../shared/live";
import { Confirm, Copyable } from "../shared/panels";
import { workerName } from "../workers/rules";

type Verb = "drain" | "undrain" | "unblock" | "revoke" | "approve";

export function WorkerActions({ worker }: { worker: WorkerDetails }) {
  const { worker_id: id } = worker;
  const client = useQueryClient();
  const [asked, ask] = useState<"revoke" | "rotate" | null>(null);
  const [token, setToken] = useState<string | null>(null);
  const again = () =>
    Promise.all([
      client.invalidateQueries({ queryKey: consoleKeys.worker(id) }),
      client.invalidateQueries({ queryKey: consoleKeys.workers }),
    ]);
  const act = useMutation({
    mutationFn: (verb: Verb) => workerActions[verb](id),
    onSuccess: async ({ data }, verb) => {
      client.setQueryData(workerQuery(id).queryKey, data as WorkerDetails);
      ask(null);
      toast({ text: texts.did[verb], tone: "good", topic: id });
      await again();
    },
    onError: toastProblem,
  });
  const rotate = useMutation({
    mutationFn: () => workerActions.rotate(id),
    onSuccess: async ({ data }) => {
      ask(null);
      setToken(data.token);
      await again();
    },
    onError: toastProblem,
  });
  const name = workerName(worker);
  const drainOrNot = worker.is_draining ? "undrain" : "drain";
  useKeys([
    { keys: "d", name: texts.actions[drainOrNot], group: shared.pages.worker, run: () => act.mutate(drainOrNot) },
  ]);
  return (
    <>
      <Button
        icon={worker.is_draining ? Play : Pause}
        isBusy={act.isPending && act.variables === drainOrNot}
        onClick={() => act.mutate(drainOrNot)}
      >
        {texts.actions[drainOrNot]}
      </Button>
      {worker.blocked > 0 && (
        <Button
          icon={LockOpen}
          isBusy={act.isPending && act.variables === "unblock"}
          onClick={() => act.mutate("unblock")}
        >
          {texts.actions.unblock}
        </Button>
      )}
      <Button icon={KeyRound} onClick={() => ask("rotate")}>
        {texts.actions.rotate}
      </Button>
      {worker.is_approved ? (
        <Button look="danger" icon={Ban} onClick={() => ask("revoke")}>
          {texts.actions.revoke}
        </Button>
      ) : (
        <Button
          look="primary"
          icon={CircleCheck}
          isBusy={act.isPending && act.variables === "approve"}
          onClick={() => act.mutate("approve")}
        >
          {texts.actions.approve}
        </Button>
      )}
      <Confirm
        isOpen={asked === "revoke"}
        onClose={() => ask(null)}
        title={texts.confirm.revokeTitle(name)}
        about={texts.confirm.revokeAbout(worker.leases)}
        action={texts.actions.revoke}
        isDanger
        isBusy={act.isPending}
        onConfirm={() => act.mutate("revoke")}
      />
      <Confirm
        isOpen={asked === "rotate"}
        onClose={() => ask(null)}
        title={texts.confirm.rotateTitle(name)}
        about={texts.confirm.rotateAbout}
        action={texts.confirm.rotateAction}
        isBusy={rotate.isPending}
        onConfirm={() => rotate.mutate()}
      />
      {/* the token exists only here: closing the dialog discards it */}
      <Dialog
        isOpen={token !== null}
        isFirm
        title={texts.token.title}
        about={texts.token.about}
        actions={
          <Button look="primary" onClick={() => setToken(null)}>
            {texts.token.done}
          </Button>
        }
      >
        {token !== null && <Copyable name={texts.token.name} text={token} />}
      </Dialog>
    </>
  );
}
