import { Button, Dialog } from "@/kit";
import { common } from "@/texts/common";
import { shared } from "@/texts/console-shared";
import { link as texts } from "@/texts/console-tenants";
import { Secret, sheet } from "../shared/sheet";
import type { ResetLink } from "./queries";

interface LinkDialogProps {
  link: ResetLink;
  title?: string;
  about?: string;
  onClose: () => void;
}

/** Shows a link once. */
export const LinkDialog = ({ link, title, about, onClose }: LinkDialogProps) => (
  <Dialog
    isOpen
    onClose={onClose}
    title={title ?? texts.title(link.email)}
    about={about ?? texts.about}
    actions={
      <Button look="primary" onClick={onClose}>
        {common.close}
      </Button>
    }
  >
    <Secret text={link.url} />
    <p className={sheet.muted}>{texts.expires(shared.moment(link.expires_at))}</p>
  </Dialog>
);
