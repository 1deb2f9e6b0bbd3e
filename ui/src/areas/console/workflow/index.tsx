import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { Header } from "@/kit/Header";
import { console as console_ } from "@/texts/console";
import { workflow as fetched } from "../catalogue/queries";
import { BackTo, QueryResult, Sheet } from "../shared/sheet";
import { WorkflowEditor } from "./WorkflowEditor";

export default function WorkflowPage() {
  const { slug } = useParams({ from: "/console/workflows/$slug" });
  const found = useQuery(fetched(slug));
  if (found.data) return <WorkflowEditor key={slug} before={found.data} />;
  return (
    <>
      <Header title={console_.pages.workflow}>
        <BackTo to="/console/workflows" name={console_.pages.workflows} />
      </Header>
      <Sheet>
        <QueryResult query={found}>{() => null}</QueryResult>
      </Sheet>
    </>
  );
}
