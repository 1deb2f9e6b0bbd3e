// Getting in: signing in and up, new passwords, and the session that is asked for again.

export const entry = {
  tagline: "Pictures and videos, made on your own GPUs.",
  email: "Email",
  password: "Password",
  newPassword: "New password",
  name: "Name",
  nameHint: "As others in your team know you.",
  passwordHint: "At least 8 characters.",
  isShort: "Use at least 8 characters.",
  show: "Show password",
  hide: "Hide password",
  signIn: {
    title: "Sign in",
    action: "Sign in",
    toSignUp: "New here?",
    toSignUpAction: "Make an account",
    forgotten: "Forgot your password? Ask your administrator for a link to set a new one.",
    wrong: "The email or the password is wrong.",
  },
  signUp: {
    title: "Make an account",
    action: "Sign up",
    toSignIn: "Have an account?",
    closed: "This server takes no new accounts",
    closedAdvice: "Ask its administrator for one: you get a link that lets you choose your password.",
  },
  again: {
    title: "Your session has ended",
    about: "Sign in again to continue. What you typed is still here.",
    other: "Sign in as somebody else",
  },
  reset: {
    title: "Choose your password",
    action: "Set password and sign in",
    about: "All other sessions of this account end. API tokens keep working.",
    gone: "This link does not work",
    goneAdvice: "It was used before, or has expired. Ask your administrator for another.",
    toSignIn: "Go to sign in",
  },
  account: "Account",
  signOut: "Sign out",
};
