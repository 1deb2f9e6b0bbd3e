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
    // a desk has its own sign-in page
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
      {/* reload the app, so that no data of the previous user is left */}
      <SignInForm onSignedIn={() => location.replace(localPath(to))}>
        {(isSending) => (
          <Button look="primary" type="submit" isBusy={isSending}>
            {texts.signIn.action}
          </Button>
        )}
      </SignInForm>
      <p className={styles.hint}>
        {found?.sends_mail ? <Link to="/forgot">{texts.signIn.toForgot}</Link> : texts.signIn.forgotten}
      </p>
    </Frame>
  );
}
