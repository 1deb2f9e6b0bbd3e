import { useId } from "react";
import { Button, Dialog } from "@/kit";
import { useReconnect } from "@/live";
import { completeSignIn } from "@/session/renewal";
import { SignInForm } from "@/session/SignInForm";
import { useSession } from "@/session/session";
import { entry as texts } from "@/texts/entry";

/** Shown when the session has expired. */
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
        onSignedIn={(user) => {
          // the open page shows the data of the previous user
          if (user.id !== me.id) return location.assign("/");
          completeSignIn();
          reconnect();
        }}
      />
    </Dialog>
  );
}
