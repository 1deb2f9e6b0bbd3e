import { useId } from "react";
import { SignInForm } from "@/areas/entry/SignInForm";
import { Button, Dialog } from "@/kit";
import { useReconnect } from "@/live";
import { entry as texts } from "@/texts/entry";
import { sessionIsBack } from "./renewal";
import { useSession } from "./session";

/** While a session is asked for. */
export default function SignInAgain() {
  const { me } = useSession();
  const reconnect = useReconnect();
  const form = useId();
  return (
    <Dialog
      isOpen
      isFirm
      title={texts.again.title}
      about={texts.again.about}
      actions={
        <>
          <Button onClick={() => location.assign("/sign-in")}>{texts.again.other}</Button>
          <Button look="primary" type="submit" form={form}>
            {texts.signIn.action}
          </Button>
        </>
      }
    >
      <SignInForm
        id={form}
        email={me.email}
        onSignedIn={(who) => {
          // what is on the screen is somebody else's
          if (who.id !== me.id) return location.assign("/");
          sessionIsBack();
          reconnect();
        }}
      />
    </Dialog>
  );
}
