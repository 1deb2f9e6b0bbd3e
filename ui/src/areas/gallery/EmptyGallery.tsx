import { Link } from "@tanstack/react-router";
import { FolderPlus, Images, SearchX } from "lucide-react";
import { Button, buttonClass, EmptyState } from "@/kit";
import { gallery as texts } from "@/texts/gallery";
import { FILTERS, type GalleryQuery, isFiltered } from "./queries";

export function EmptyGallery({ query, onShowAll }: { query: GalleryQuery; onShowAll: () => void }) {
  if (query.collection && FILTERS.every((each) => each === "collection" || !query[each])) {
    return (
      <EmptyState icon={FolderPlus} title={texts.emptyCollection} text={texts.emptyCollectionAdvice}>
        <Button onClick={onShowAll}>{texts.showAll}</Button>
      </EmptyState>
    );
  }
  if (isFiltered(query)) {
    return (
      <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice}>
        <Button onClick={onShowAll}>{texts.showAll}</Button>
      </EmptyState>
    );
  }
  return (
    <EmptyState icon={Images} title={texts.empty} text={texts.emptyAdvice}>
      <Link to="/create" className={buttonClass({ look: "primary" })}>
        {texts.emptyAction}
      </Link>
    </EmptyState>
  );
}
