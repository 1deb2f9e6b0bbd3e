import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { Header } from "@/kit/Header";
import { console as console_ } from "@/texts/console";
import { effect as fetched } from "../catalogue/queries";
import { BackTo, QueryResult, Sheet } from "../shared/sheet";
import { EffectEditor } from "./EffectEditor";

export default function EffectPage() {
  const { slug } = useParams({ from: "/console/effects/$slug" });
  const found = useQuery(fetched(slug));
  if (found.data) return <EffectEditor key={slug} before={found.data} />;
  return (
    <>
      <Header title={console_.pages.effect}>
        <BackTo to="/console/effects" name={console_.pages.effects} />
      </Header>
      <Sheet>
        <QueryResult query={found}>{() => null}</QueryResult>
      </Sheet>
    </>
  );
}
