import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { FilePlus2, SearchX } from "lucide-react";
import { useState } from "react";
import { post } from "@/api/client";
import { keys } from "@/api/queries";
import { Button, EmptyState, toastProblem } from "@/kit";
import { create as texts } from "@/texts/create";

/** Offers to add the removed workflow of a job again. The values of the job then fill its form. */
export function RemovedWorkflow({ jobId }: { jobId: string }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/create" });
  const [isAdding, setAdding] = useState(false);
  const addAgain = async () => {
    setAdding(true);
    try {
      const { data } = await post("/api/ai-jobs/{job_id}/workflow", { path: { job_id: jobId } });
      await client.invalidateQueries({ queryKey: keys.workflows });
      await navigate({ search: { workflow: data.slug, from: jobId }, replace: true });
    } catch (thrown) {
      toastProblem(thrown);
      setAdding(false);
    }
  };
  return (
    <EmptyState icon={SearchX} title={texts.removed} text={texts.removedAdvice}>
      <Button look="primary" icon={FilePlus2} isBusy={isAdding} onClick={() => void addAgain()}>
        {texts.addAgain}
      </Button>
    </EmptyState>
  );
}
