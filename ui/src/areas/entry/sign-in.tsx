import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import { entry } from "@/api/queries";
import { Button } from "@/kit";
import { SignInForm } from "@/session/SignInForm";
import { localPath } from "@/session/sign-in-guard";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";
import { Frame } from "./Frame";

export default function SignIn() {
  const { to } = useSearch({ from: "/sign-in" });
  const { data: found } = useQuery(entry);
  useEffect(() => {
    // a desk has a page of its own for this
    if (found === null || found?.is_desk) location.replace("/");
  }, [found]);
  return (
    <Frame
      title={texts.signIn.title}
      foot={
        found?.can_sign_up && (
          <p>
            {texts.signIn.toSignUp}{" "}
            <Link to="/sign-up" search={to ? { to } : {}}>
              {texts.signIn.toSignUpAction}
            </Link>
          </p>
        )
      }
    >
      {/* the whole app is loaded anew: nothing of who was here before is left in it */}
      <SignInForm onSignedIn={() => location.replace(localPath(to))}>
        {(isSending) => (
          <Button look="primary" type="submit" isBusy={isSending}>
            {texts.signIn.action}
          </Button>
        )}
      </SignInForm>
      <p className={styles.hint}>{texts.signIn.forgotten}</p>
    </Frame>
  );
}
